"""What the logo agent draws with: a name, a palette, letters, marks and three layouts."""
