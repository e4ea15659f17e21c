"""What happens on the node of a place: sessions are started as on a single machine, solutions built, blobs laid out."""
