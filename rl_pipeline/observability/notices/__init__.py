"""What is to be told to somebody outside, kept until it is: the outbox of reports and alerts, and the ways out."""
