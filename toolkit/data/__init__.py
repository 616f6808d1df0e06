"""From text to the global batch of a step: token shards, one stream, one order for any ranks.

    documents -> vocabulary -> prepare -> shards + index
                                            |
                                          stream -> order -> batches

Arrays are numpy; the training loop turns them into tensors.
"""
