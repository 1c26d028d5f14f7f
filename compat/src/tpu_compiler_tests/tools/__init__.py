"""What the published framework keeps for its own tests, as far as its examples import it."""
