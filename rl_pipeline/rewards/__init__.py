"""What a trajectory was worth: facts are measured once (signals), terms score them, and scores become rewards.

A reward is a pure function of the signals up to the ledger's watermark, the feedback and the configuration, so it does
not depend on when, or in which batches, it was computed.
"""
