"""What makes runs happen: jobs, schedules, and one file per sensor. Decisions are the core's; this is wiring."""
