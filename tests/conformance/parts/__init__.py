"""The parts that a host can be given: one contract each, in memory and as views of stores."""
