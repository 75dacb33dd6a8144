-- Outcomes name their sessions by digests, and belong to the windows in which these began.
ALTER TABLE serving_outcomes {on_cluster}
    COMMENT COLUMN session_id 'A keyed digest of what the caller calls it.',
    COMMENT COLUMN started_at 'Its first request, or what came of it late: by this it belongs to its window.',
    COMMENT COLUMN stream_time 'When the stream stored it: once its window was closed, it counts in none.';
