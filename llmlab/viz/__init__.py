"""What a lab shows: figures, panels, and tables and text where no widget works."""
