"""What other systems call: the HTTP API and the request/reply over NATS. Every rule is the core's; here is only the way
in: keys, limits, problems, and answers that come from durable stores alone."""
