"""The rules for secrets together: one secret in every notation, and ordinary text that they leave alone."""

import pytest

from rl_pipeline.redaction.rule import packaged_rules

SECRETS = frozenset({"API_KEY", "PASSWORD", "PRIVATE_KEY", "JWT", "SECRET"})
RULES = [rule for rule in packaged_rules() if rule.kind in SECRETS and rule.on]
PROVIDERS_KEY = "ghp_Qm7Zp2Lx9vK4tR8wN3bY6cH1jF5gD0sA2eU4"
DRAWN = "q7m2zp9lx4vktr8wn3by6ch1jf5gd0sa"
HEX = "7c2e9b4d1f8a3650e7d9c1b3a5f8e2d4"
UUID = "c4ed6c21-9dd5-4a05-8e3f-c56d1151cce8"
PASSWORD = "h0pk1ns~21s"


def found(text: str) -> set[str]:
    """Every value that a rule which is on finds."""
    return {
        rule.value_of(match).decode()
        for rule in RULES
        for match in rule.pattern.finditer(text.encode())
        if rule.accepts(match)
    }


@pytest.mark.parametrize("secret", [PROVIDERS_KEY, DRAWN, HEX, UUID])
@pytest.mark.parametrize(
    "notation",
    [
        "ACME_API_KEY={}",
        "export ACME_TOKEN={}",
        "ENV ACME_TOKEN {}",
        '{{"acme_token": "{}", "page": 2}}',
        '{{\\"acme_token\\": \\"{}\\"}}',
        "acme:\n  api_key: {}\n",
        "acme_secret = '{}'",
        'acme_api_key: Final[str] = "{}"',
        'const acmeToken: string = "{}";',
        'var acmeSecret string = "{}"',
        "acmeToken := `{}`",
        'private static final String ACME_TOKEN = "{}";',
        "'acme_token' => '{}',",
        '$acmeToken .= "{}";',
        'acme_api_key   = "{}"',
        "ACME_TOKEN ?= {}",
        "acme.client-secret={}",
        "https://api.acme.org/v1/items?access_token={}&page=2",
        "X-Acme-Api-Key: {}",
        "curl -H 'Authorization: Bearer {}' https://api.acme.org",
        "<acmeApiKey>{}</acmeApiKey>",
        '<add key="AcmeToken" value="{}" />',
        '- name: ACME_TOKEN\n  value: "{}"',
        "acme login --token {}",
        "acme --api-key={} run",
        'os.getenv("ACME_TOKEN", "{}")',
        'client = Acme(api_key="{}")',
        '(def acme-token "{}")',
        "//registry.acme.org/:_authToken={}",
    ],
)
def test_a_secret_is_found_in_every_notation(notation: str, secret: str) -> None:
    assert secret in found(notation.format(secret))


@pytest.mark.parametrize(
    "notation",
    [
        "DB_PASSWORD={}",
        'db_password = "{}"',
        '"password": "{}"',
        "password: {}",
        "spring.datasource.password={}",
        "Server=db;User Id=app;Password={};Encrypt=true",
        "jdbc:postgresql://db/orders?user=app&password={}",
        "postgres://app:{}@db.internal:5432/orders",
        "mongodb+srv://app:{}@cluster0.acme.mongodb.net/",
        "git remote add origin https://app:{}@git.acme.org/site.git",
        "curl -u app:{} https://api.acme.org",
        "PGPASSWORD={} psql -h db",
        "mysql -u root -p{} orders",
        "sshpass -p '{}' ssh root@host",
        "<password>{}</password>",
        "acme --db-password {}",
        "machine api.acme.org login app password {}",
        "define('DB_PASSWORD', '{}');",
        'user.setPassword("{}")',
        'if password == "{}":',
    ],
)
def test_a_password_is_found_in_every_notation(notation: str) -> None:
    assert PASSWORD in found(notation.format(PASSWORD))


def test_only_the_password_of_a_url_is_a_finding() -> None:
    assert found(f"postgres://app:{PASSWORD}@db.internal:5432/orders") == {PASSWORD}


@pytest.mark.parametrize("end", ["\n", "\\n", "\\\\n", '" +\n    "'])
def test_a_private_key_is_found_whole_however_its_lines_end(end: str) -> None:
    lines = ["MIIEpAIBAAKCAQEAx7Qm2Zp9Lx4vKtR8wN3bY6cH1jF5gD0sA2eU4iO7kPzWnTb5", "Vc2MgYf9RjQe4KaU1oXi", "k0w="]
    key = end.join(["-----BEGIN RSA PRIVATE KEY-----", *lines, "-----END RSA PRIVATE KEY-----"])
    assert found(f'{{"key": "{key}"}}') == {key}


def test_a_private_key_that_is_cut_off_is_found_to_its_end() -> None:
    body = "b3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQAAAAAAAAABAAAAMwAAAAtzc2gt"
    key = f"-----BEGIN OPENSSH PRIVATE KEY-----\n{body}\n{body[:20]}"
    assert found(f"{key} (truncated)") == {key}


@pytest.mark.parametrize("name", ["password", "api_key", "token", "ACME_SECRET", "Authorization"])
@pytest.mark.parametrize("assignment", ["{}=[REDACTED:{}:0123456789ab]", '"{}": "[REDACTED:{}:0123456789ab]"'])
def test_a_placeholder_is_left_alone(name: str, assignment: str) -> None:
    assert found(assignment.format(name, "API_KEY")) == set()


@pytest.mark.parametrize(
    "text",
    [
        "commit 7c2e9b4d1f8a3650e7d9c1b3a5f8e2d4b6a09c13\nAuthor: A <a@acme.org>",
        "index 7c2e9b4..1f8a365 100644\n--- a/token.py\n+++ b/token.py",
        f"trace_id={HEX} span_id=7c2e9b4d1f8a3650",
        f"request {UUID} took 12 ms\nrequest {UUID} took 9 ms",
        f"md5:{HEX}  file.tar.gz",
        f"sha256:{HEX}{HEX}",
        f'"integrity": "sha512-Qm7Zp2Lx9vK4tR8wN3bY6cH1jF5gD0sA2eU4iO7kPzWnTb5Vc2MgYf9RjQe4KaU1oXi+{"a1B" * 6}=="',
        f"image: acme/site@sha256:{HEX}{HEX}",
        f'ETag: "{HEX}"',
        '<img src="data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhg">',
        "url(data:font/woff2;base64,d09GMgABAAAAAAbMAAsAAAAADZgAAAZ9AAEAAAAAAAAAAAAAAAAAAAAAAAAAAAAABlYAgl4KjXyKSQ)",
        "version = 1.2.3-alpha.20240101+build.5114f85",
        "torch==2.4.1+cu121 --hash=sha256:7c2e9b4d1f8a3650e7d9c1b3a5f8e2d4",
        "color: #7c2e9b; background: #1f8a36",
        "!function(e,t){var n=t.key,r=e.token;o.keySelector=n,o.haKey=!1,i(r.secret,n.auth)}(a1,b2);",
        "00000000: 7f45 4c46 0201 0100 0000 0000 0000 0000  .ELF............",
        "pod/checkout-7d9c1b3a5f-x8e2d restarted in kube-system",
        "def login(user: str, password: str, token: Optional[str] = None) -> Session:",
        "token = tokenizer.encode(text, max_tokens=4096)\nkeys = sorted(tokens, key=lambda t: t.key)",
        "password = getpass.getpass('Password: ')",
        'password = os.environ["DB_PASSWORD"]',
        "const token = process.env.ACME_TOKEN;",
        "api_key: ${{ secrets.ACME_API_KEY }}",
        'DATABASE_URL = f"postgres://{user}:{password}@{host}/db"',
        'csrf_token = "Mj2qykJO5rELyHgezQ69nzUX0i3OH67V7V4eUrLfpuyOuxmiW9"',
        'cache_key = f"user:{user_id}:v2"',
        'PRIMARY KEY (user_id), FOREIGN KEY (key) REFERENCES keys (id)',
        'public_key = "9Cnzj4p4WGeKLs1Pt8QuKUpRKfFLfRYC9AIKjbJTWit"',
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGq7m2zp9Lx4vKtR8wN3bY6cH1jF5gD0sA2eU4iO7kPz user@host",
        '{"usage": {"prompt_tokens": 1234, "completion_tokens": 567, "total_tokens": 1801}}',
        '"login.password.label": "Password", "login.password.hint": "Enter your password"',
        '<input type="password" name="password" placeholder="Password" autocomplete="current-password">',
        "{'type': 'string', 'format': 'password', 'title': 'Password'}",
        'api_key = "your_api_key_here"  # or <token>, xxxx, changeme, ***',
        "postgres://user:password@localhost/db",
        "git clone git@github.com:acme/site.git",
        "https://3f9a1c7e5b2d4f8091a3c5e7b9d1f204@o4505.ingest.sentry.io/42",
        "SELECT token, secret FROM credentials WHERE key = :key",
        "s.AcceptanceTimeoutSeconds = b.makeKubeConfigController",
        '__slots__ = ("user", "password", "host", "port")',
        ".sk-toggleablecontentlabelwrapperinnerbox { color: red }",
        "kms_key_id = c4ed6c21-9dd5-4a05-8e3f-c56d1151cce8",
        "docker run -u 1000:1000 -p 8080:80 image",
        "  Sentry: 7c2e9b4d1f8a3650e7d9c1b3a5f8e2d4b6a09c13",
    ],
)  # fmt: skip
def test_ordinary_text_is_left_alone(text: str) -> None:
    assert found(text) == set()
