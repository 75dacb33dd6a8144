"""From the stream to the warehouse: what has arrived, what has been taken in, what is missing."""
