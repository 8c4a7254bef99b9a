"""Tests of real host processes: killed, frozen, with full disks, and read over HTTP."""
