"""Mail between real hosts over real brokers that break."""
