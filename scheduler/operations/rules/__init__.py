"""Operations on the rules: apply them, preview them, list their versions, and what they would launch."""
