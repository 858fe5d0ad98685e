"""HTTP itself: bodies and their limits, what happens around every request, the server, the API document."""
