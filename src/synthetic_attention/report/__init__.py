"""What people read: progress while training, tables afterwards."""
