"""Read data. Input that a user can correct raises `UserError` with the file and the line."""
