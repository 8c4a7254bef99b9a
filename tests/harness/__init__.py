"""What tests share: servers, faults, evidence."""
