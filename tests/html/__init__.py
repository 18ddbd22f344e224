"""What the HTML reports share."""
