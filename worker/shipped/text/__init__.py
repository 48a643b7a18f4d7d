"""Reading free text without a model: sentences, their weight, and answers in the shape of a schema."""
