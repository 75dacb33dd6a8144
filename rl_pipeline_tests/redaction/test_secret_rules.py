"""The rules for secrets together: one secret in every notation, and ordinary text that they leave alone."""

import pytest

from rl_pipeline.redaction.rule import packaged_rules

SECRETS = frozenset({"API_KEY", "PASSWORD", "PRIVATE_KEY", "JWT", "SECRET"})
RULES = [rule for rule in packaged_rules() if rule.kind in SECRETS and rule.on]
PROVIDERS_KEY = "ghp_Qm7Zp2Lx9vK4tR8wN3bY6cH1jF5gD0sA2eU4"
DRAWN = "q7m2zp9lx4vktr8wn3by6ch1jf5gd0sa"
HEX = "7c2e9b4d1f8a3650e7d9c1b3a5f8e2d4"
UUID = "3b9f0e72-5d16-4c8a-b7e4-90a2d6f1c853"
PASSWORD = "w3lkorq~58z"

SIGNED = "eyJhbGciOiJFUzM4NCIsImtpZCI6ImE3In0.eyJzdWIiOiI4NDcyNjE5NTAzIn0.x7Qm2Zp9Lx4vKtR8wN3bY6cH1jF5gD0sA2eU4"
SEGMENT_KEY = "sgp_rKo4gdfkIWHVmY50b9bDomGwF9DyfWW7KYNEGfxekrxwgt2hFkct9r8V2yVzrCmD"
KEY_LINES = ["MIIEpAIBAAKCAQEAx7Qm2Zp9Lx4vKtR8wN3bY6cH1jF5gD0sA2eU4iO7kPzWnTb5", "Vc2MgYf9RjQe4KaU1oXi8wLq", "k0w="]


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
        "db:\n  password: |\n    {}\n",
        'password                = "{}"',
        "**Password:** {}",
        "**Password**: `{}`",
        "| DB_PASSWORD | `{}` |",
        "CREATE USER app WITH PASSWORD '{}';",
        "ALTER USER app IDENTIFIED BY '{}';",
        "ENV DB_PASSWORD {}",
        "setx DB_PASSWORD {}",
        "requirepass {}",
        '<password type="text">{}</password>',
        "&quot;password&quot;: &quot;{}&quot;",
        "page.fill('#password', '{}')",
        """page.type('input[name="password"]', '{}')""",
        "db:\n  password:\n    {}\n",
        "password : {}",
        "root:{}@tcp(db:3306)/orders",
        "jdbc:oracle:thin:app/{}@db:1521:orders",
        "NEO4J_AUTH=neo4j/{}",
        "sqlcmd -S db -U sa -P {}",
        "smbclient -U 'app%{}' //files/share",
        "echo 'app:{}' | sudo chpasswd",
        "echo '{}' | docker login -u app --password-stdin",
        "net user app {} /add",
        "openssl rsa -in a.key -passin pass:{}",
        "ALTER ROLE app PASSWORD '{}'",
        'DriverManager.getConnection(url, "app", "{}")',
        "mysqli_connect($host, 'app', '{}')",
        "requests.get(url, auth=('app', '{}'))",
        "The password for app is {}",
        "Mot de passe : {}",
        "密码: {}",
    ],
)
def test_a_password_is_found_in_every_notation(notation: str) -> None:
    assert PASSWORD in found(notation.format(PASSWORD))


@pytest.mark.parametrize(
    ("text", "password"),
    [
        ("DB_PASSWORD=Example7Kq92x", "Example7Kq92x"),
        ("password=Mytodo7Kq92", "Mytodo7Kq92"),
        ("password=aB...7Kq92x", "aB...7Kq92x"),
        ("password=$uperS3cret9", "$uperS3cret9"),
        ("DB_PASSWORD=aB3zz;dE5gH9x", "aB3zz;dE5gH9x"),
        ('password = "aB3\\"dE5gH9x"', 'aB3\\"dE5gH9x'),
        ('password = "marble otter 7 lantern"', "marble otter 7 lantern"),
    ],
)
def test_a_password_with_signs_and_words_of_placeholders_is_found_whole(text: str, password: str) -> None:
    assert password in found(text)


@pytest.mark.parametrize("token", [PROVIDERS_KEY, SIGNED, SEGMENT_KEY])
@pytest.mark.parametrize("place", ["\n+{}\n", "\n-{}\n", "+{}", "see _{}_ now", "https://a.org/verify/{}"])
def test_a_token_is_found_in_diffs_emphasis_and_paths(place: str, token: str) -> None:
    assert any(value.rstrip("_") == token for value in found(place.format(token)))


@pytest.mark.parametrize("prefix", ["{:>6}\t", "{}:", "certs/server.key:{}:", "certs/server.key-{}-"])
def test_a_private_key_is_found_whole_as_tools_print_it(prefix: str) -> None:
    lines = ["-----BEGIN RSA PRIVATE KEY-----", *KEY_LINES, "-----END RSA PRIVATE KEY-----"]
    printed = "\n".join(prefix.format(number) + line for number, line in enumerate(lines, start=1))
    assert printed.removeprefix(prefix.format(1)) in found(printed)


def test_the_tail_of_a_private_key_is_found() -> None:
    tail = "\n".join([*KEY_LINES, "-----END RSA PRIVATE KEY-----"])
    assert found(f"(cut)\n{tail}\n") == {tail}


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
        "!function(e,t){var n=t.key,r=e.token;u.keyOfRow=n,u.isKey=!1,i(r.secret,n.auth)}(a1,b2);",
        "00000000: 7f45 4c46 0201 0100 0000 0000 0000 0000  .ELF............",
        "pod/checkout-7d9c1b3a5f-x8e2d restarted in kube-system",
        "def login(user: str, password: str, token: Optional[str] = None) -> Session:",
        "token = tokenizer.encode(text, max_tokens=4096)\nkeys = sorted(tokens, key=lambda t: t.key)",
        "password = getpass.getpass('Password: ')",
        'password = os.environ["DB_PASSWORD"]',
        "const token = process.env.ACME_TOKEN;",
        "api_key: ${{ secrets.ACME_API_KEY }}",
        'DATABASE_URL = f"postgres://{user}:{password}@{host}/db"',
        'csrf_token = "jwA7mLibk37DI5Txr1FDtQrfDepGODFZXGMjPHadYkj96KaoQb"',
        'cache_key = f"user:{user_id}:v2"',
        'PRIMARY KEY (user_id), FOREIGN KEY (key) REFERENCES keys (id)',
        'public_key = "yO7UY2CVhNM1A3jKGy8YHuQ9uqKgZTd1yCv7ffQijHk"',
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
        "s.RetainedSnapshotsPerNode = b.openWideTableOfAllTenant",
        '__slots__ = ("user", "password", "host", "port")',
        ".sk-toggleablecontentlabelwrapperinnerbox { color: red }",
        "kms_key_id = 3b9f0e72-5d16-4c8a-b7e4-90a2d6f1c853",
        "docker run -u 1000:1000 -p 8080:80 image",
        "PASS: test_login_2\n# First pass: decided_mask==0",
        '<li key="row-8f3b2c9d4e5f6a7b">',
        "Key 'user_91a2b3c4d5e6f708' not found",
        "'lowpass': 'lowpass', 'bandpass': 'band2'",
        'key = "MLKEM768X25519PublicKey"',
        "secret = kXxh3Secrets + 1",
        "github://acme:site@main",
        '"password": "Must be at least 8 characters"',
        "| password | string | min 8 |\n| token | sha256 | none |",
        "  Sentry: 7c2e9b4d1f8a3650e7d9c1b3a5f8e2d4b6a09c13",
        "$password = $request->input('password');\nmy $pwd = $ftp->pwd;",
        "'password' => 'required|string|min:8|confirmed',",
        "names that are identified by 'nameID'",
        "if password:\n    return check_password2(password)\n",
        "docker compose -p shop2 up && docker run -p 8080:80 image2",
        "requests.get(url, auth=('user', 'password'))",
    ],
)  # fmt: skip
def test_ordinary_text_is_left_alone(text: str) -> None:
    assert found(text) == set()
