"""The curl, nats and promql lines of the quick reference (S1) and of the trainer's profile (S2), letter by letter.

In the sense of C-31: URLs with an `&` are quoted, and a time is one of Prometheus. What stands for something else in a
line (`uuid`, `{job_id}`, `{ ... }`) is filled in by whoever runs it.
"""

# Of S1, on subjects.
LISTEN = {
    "trajectory": 'nats sub "agent.rl.trajectory.v1" --queue rl-workers',
    "ten trajectories": 'nats sub "agent.rl.trajectory.v1" --count 10',
    "reward": 'nats sub "agent.rl.reward.v1"',
    "status": 'nats sub "agent.rl.training.status.v1"',
    "deployed": 'nats sub "agent.rl.model.deployed.v1"',
}
ROLLBACKS = 'nats sub "agent.rl.model.deployed.v1" | grep -i rollback'
REQUEST = """nats pub "agent.rl.training.request.v1" '{
  "training_job_id": "uuid",
  "timestamp": "2025-12-08T13:00:00Z",
  "requester": "rl-trainer-subordinate",
  "trigger_reason": "threshold_reached",
  "training_config": { ... }
}'"""
MANUAL_REQUEST = """nats pub "agent.rl.training.request.v1" "$(cat <<EOF
{
  "training_job_id": "manual-$(uuidgen)",
  "timestamp": "$(date -u +%Y-%m-%dT%H:%M:%SZ)",
  "requester": "admin-manual",
  "trigger_reason": "manual",
  "training_config": {
    "algorithm": "ppo",
    "base_model": "qwen2.5-32b-instruct",
    "dataset": {
      "source": "nats_stream",
      "stream_name": "RL_TRAJECTORIES",
      "sample_size": 5000
    },
    "hyperparameters": {
      "learning_rate": 1e-5,
      "batch_size": 32,
      "epochs": 3
    }
  }
}
EOF
)\""""
STATUS_BY_NATS = """nats req "agent.rl.training.status.request" '{"job_id": "uuid"}'"""
ADD_STREAMS = (
    """nats stream add RL_TRAJECTORIES \\
  --subjects "agent.rl.trajectory.v1" \\
  --retention limits \\
  --max-age 30d \\
  --max-msgs 1000000 \\
  --storage file""",
    """nats stream add RL_REWARDS \\
  --subjects "agent.rl.reward.v1" \\
  --retention limits \\
  --max-age 30d \\
  --max-msgs 500000 \\
  --storage file""",
    """nats stream add RL_TRAINING \\
  --subjects "agent.rl.training.>" \\
  --retention limits \\
  --max-age 7d \\
  --max-msgs 10000 \\
  --storage file""",
)
STREAM_INFO = "nats stream info RL_TRAJECTORIES"
STREAM_MESSAGES = "nats stream info RL_TRAJECTORIES | grep Messages"

# Of S1 and S2, to the service.
HEALTH = "curl http://agentgym-rl:8100/health"
START = """curl -X POST http://agentgym-rl:8100/training/start \\
  -H "Content-Type: application/json" \\
  -d @training_config.json"""
STATUS = "curl http://agentgym-rl:8100/training/{job_id}/status"
MODELS = "curl http://agentgym-rl:8100/models"
HISTORY = "curl 'http://agentgym-rl:8100/jobs?status=completed&limit=10'"
WEEK = "curl 'http://agentgym-rl:8100/jobs?status=completed&since=7d'"
DEPLOYED_SINCE = "curl 'http://agentgym-rl:8100/models?deployed_since=7d'"

# Of S1 and S2, to the gateway.
GATEWAY_HEALTH = "curl http://tensorzero-gateway:3000/health"
REGISTER = """curl -X POST http://tensorzero-gateway:3000/admin/models \\
  -H "Content-Type: application/json" \\
  -d '{
    "model_id": "agent-zero-rl-v2.3",
    "base_model": "qwen2.5-32b-instruct",
    "checkpoint_path": "s3://pmoves-models/rl-checkpoints/..."
  }'"""
SPLIT = """curl -X PUT http://tensorzero-gateway:3000/admin/traffic \\
  -H "Content-Type: application/json" \\
  -d '{
    "model_id": "agent-zero-rl-v2.3",
    "traffic_percentage": 50
  }'"""
ROLL_BACK = """curl -X PUT http://tensorzero-gateway:3000/admin/traffic \\
  -d '{"model_id": "agent-zero-rl-v2.3", "traffic_percentage": 100}'"""
METRICS = "curl http://tensorzero-gateway:3000/admin/models/agent-zero-rl-v2.3/metrics"
CURRENT = "curl http://tensorzero-gateway:3000/admin/models/current/metrics"

# Of S1, to Prometheus.
ALERTS = "curl http://prometheus:9090/api/v1/alerts"
REWARD_MEAN = "curl 'http://prometheus:9090/api/v1/query?query=agent_rl_model_reward_mean'"
ERROR_RATE = "curl 'http://prometheus:9090/api/v1/query?query=agent_rl_model_error_rate'"
TREND = (
    'curl "http://prometheus:9090/api/v1/query_range?query=agent_rl_model_reward_mean'
    "&start=$(date -u -d '-7 days' +%s)&end=$(date -u +%s)&step=1h\""
)
PROMQL = (
    "rate(agent_rl_trajectories_collected_total[5m]) * 60",
    "avg_over_time(agent_rl_trajectory_reward[1h])",
    'sum(rate(agent_rl_training_jobs_total{status="completed"}[24h])) /\nsum(rate(agent_rl_training_jobs_total[24h]))',
    'agent_rl_model_reward_mean{model_version=~".*"}',
    "rate(agent_rl_model_errors_total[5m])",
    "sum(increase(agent_rl_trajectories_collected_total[24h]))",
    "agent_rl_model_reward_mean",
)
