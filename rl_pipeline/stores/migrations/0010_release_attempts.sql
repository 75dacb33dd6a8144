-- A release whose rollout was interrupted waits again, for another attempt.
ALTER TABLE model_releases {on_cluster}
    ADD COLUMN IF NOT EXISTS attempt UInt8 DEFAULT 0 COMMENT 'How often its rollout was interrupted.' AFTER number,
    COMMENT COLUMN deployment_id 'Of the rollout of this attempt.',
    COMMENT COLUMN version 'Two for each attempt before, and 1 once it no longer waits: the first end of an attempt counts.';
