"""The paper's mathematics as pure functions: random streams, schedules, masking, x̂, and the bounds in nats."""
