"""Language: vocabulary, word classes, sub-word pieces."""
