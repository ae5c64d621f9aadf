"""The command line, `appliance`: one module per group of commands. Heavy imports stay inside the commands."""
