"""`callboard runs …`: list and show, orders to runs, again, ends, trees and events."""
