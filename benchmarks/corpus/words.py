"""The words that made-up texts consist of."""


def _words(text: str) -> list[str]:
    return text.split()


NOUNS = _words("""
    account action agent amount answer archive attempt batch block branch buffer cache cell chunk client cluster
    column command commit config connection content context counter cursor customer dataset delta device digest
    document domain edge element email encoder endpoint entry error event factor feature field filter folder
    frame function gateway graph group handler header history image index invoice item iterator job key label
    layer ledger limit line listener loader lock manifest mapping matrix member message method metric middleware
    model module node notebook object offset option order output owner package page parameter parser partition
    password path payment pipeline plan policy pool position prefix price process profile project prompt
    property provider query queue range record region registry report request resource response result retry
    reward role route row rule sample scheduler schema scope score script section segment selector sequence
    series server session setting shard signal snapshot source stage state step storage stream string summary
    table target task template tensor test thread threshold ticket timeout token tool topic trace tracker
    trajectory transaction transform tree trigger tuple update user value variable vector version view visitor
    volume weight window worker writer zone
""")
VERBS = _words("""
    add append apply build cache check clear collect compare compute convert copy count create decode delete
    drop emit encode fetch filter find flush format generate get group handle index init insert join list load
    lock log make map merge move normalise open parse patch pick plan post process publish pull push query read
    rebuild record reduce refresh register release remove render replace reset resolve retry return rotate run
    save scan schedule score select send serialise set skip sort split start stop store stream submit swap sync
    test trace train trim update upload validate verify wait walk wrap write yield
""")
ADJECTIVES = _words("""
    active async atomic cached clean cold current daily dirty empty external failed fast final first fixed fresh
    global hidden idle immutable inner invalid large last latest lazy local main max min missing new nested next
    null old open optional outer parallel partial pending previous primary raw recent remote required safe
    shared simple slow small sorted stale static strict temporary total unique unused valid virtual whole
""")
FILLERS = _words("""
    the of to and a in that is for it with as on be at by this from or an are was which we can has not have but
    if then when so there its into only than more also because before after should would first still each one
    two
""")
PACKAGES = _words("""
    numpy requests pydantic polars fastapi uvicorn pytest click rich httpx sqlalchemy torch aiohttp boto3 attrs
    jinja2 redis celery grpcio protobuf pillow scipy pandas networkx typer
""")
FIRST_NAMES = _words("""
    Ada Grace Alan Edsger Barbara Donald Frances Ken Radia Tim Margaret John Katherine Dennis Hedy Linus
""")
LAST_NAMES = _words("""
    Lovell Hopkins Turner Dykes Liskova Knudsen Alder Thorne Perl Berners Hamil Backe Johnsen Richter Lamar
""")
