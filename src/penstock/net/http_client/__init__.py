"""The HTTP client, for asyncio (`client`) and blocking (`blocking`), on one HTTP/1.1 core."""
