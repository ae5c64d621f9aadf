"""What the appliance keeps: rows in a database, file bytes on the disk."""
