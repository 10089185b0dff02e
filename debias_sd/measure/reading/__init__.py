"""What an encoder reads of a text, by place: where its pooled token looks, and what changes there do to the vector."""
