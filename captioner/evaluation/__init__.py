"""Caption metrics, and tests of attention: grounding and faithfulness."""
