"""Tests of `callboard serve` on real servers, over sockets."""
