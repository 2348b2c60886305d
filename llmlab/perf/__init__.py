"""What a step must cost: its FLOPs and bytes, the device's ceilings, and how near it came."""
