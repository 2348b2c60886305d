"""A class on JupyterHub: two students log in, work, and see nothing of each other."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.labs.hub_tools import FIRST_UID, ROOT, hub_tools, separate_python

pytestmark = [pytest.mark.full, pytest.mark.timeout(420)]

PASSWORD = "only for this test"
NAMES = ("ada", "grace")

# What differs from the recipe: where accounts come from. The accounts of a test are numbers.
CONFIG = """
import os
load_subconfig({recipe!r})
from jupyterhub.spawner import LocalProcessSpawner

class Accounts(LocalProcessSpawner):
    def make_preexec_fn(self, name):
        uid, home = {uids!r}.get(name), os.path.join({homes!r}, name)
        def become():
            if uid is not None:
                os.setgroups([]); os.setgid(uid); os.setuid(uid)
            os.chdir(home)
        return become

    def user_env(self, env):
        return env | dict(USER=self.user.name, HOME=os.path.join({homes!r}, self.user.name),
                          SHELL="/bin/sh")

c.JupyterHub.authenticator_class = "shared-password"
c.SharedPasswordAuthenticator.user_password = {password!r}
c.Authenticator.allowed_users = set({names!r})
c.JupyterHub.spawner_class = Accounts
c.JupyterHub.bind_url = "http://127.0.0.1:{port}"
c.JupyterHub.hub_port = {hub_port}
c.ConfigurableHTTPProxy.api_url = "http://127.0.0.1:{api_port}"
c.ConfigurableHTTPProxy.command = [{proxy!r}]
if not {uids!r} and os.geteuid() == 0:
    c.Spawner.args.append("--allow-root")
"""


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


def until(what: str, ready: Any, seconds: float = 90) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(httpx.TransportError):
            if answer := ready():
                return answer
        time.sleep(0.3)
    pytest.fail(f"not in {seconds:.0f} s: {what}")


@dataclass
class Person:
    """A student in front of a browser: a session with cookies, later a token of their own."""

    url: str
    name: str
    http: httpx.Client = field(init=False)
    token: str = ""

    def __post_init__(self) -> None:
        self.http = httpx.Client(base_url=self.url, follow_redirects=True, timeout=30)

    def login(self, password: str = PASSWORD) -> httpx.Response:
        self.http.get("/hub/login")
        form = {"username": self.name, "password": password, "_xsrf": self.xsrf()}
        return self.http.post("/hub/login", data=form)

    def xsrf(self) -> str:
        return next(c.value or "" for c in self.http.cookies.jar if c.name == "_xsrf")

    def start(self) -> None:
        """Open one's own server as the browser does, and wait until it answers."""
        page = f"/user/{self.name}/lab/tree/00_start_here.ipynb"
        self.http.get(f"/hub/spawn/{self.name}")
        until("the server", lambda: "jupyter-config-data" in self.http.get(page).text)
        if not self.token:
            header = {"X-XSRFToken": self.xsrf(), "Referer": f"{self.url}/hub/home"}
            reply = self.http.post(f"/hub/api/users/{self.name}/tokens", json={}, headers=header)
            self.token = reply.raise_for_status().json()["token"]

    def api(self, method: str, path: str, token: str = "", **more: Any) -> httpx.Response:
        """A request by token alone, without the session's cookies."""
        header = {"Authorization": f"token {token or self.token}"}
        return httpx.request(method, self.url + path, headers=header, timeout=60, **more)

    def run(self, code: str) -> dict[str, Any]:
        """Run a cell in a fresh kernel; returns the JSON object that it prints last."""
        base = f"/user/{self.name}/api/kernels"
        asked = {"name": "python3", "path": "00_start_here.ipynb"}  # it runs beside that notebook
        kernel = self.api("POST", base, json=asked).raise_for_status().json()["id"]
        try:
            return _execute(f"{self.url}{base}/{kernel}/channels", self.token, code)
        finally:
            self.api("DELETE", f"{base}/{kernel}")


def _execute(url: str, token: str, code: str) -> dict[str, Any]:
    import websocket

    channel = websocket.create_connection(
        url.replace("http", "ws", 1), header=[f"Authorization: token {token}"], timeout=120
    )
    message = uuid.uuid4().hex
    header = {"msg_id": message, "msg_type": "execute_request", "version": "5.3"}
    header |= {"session": uuid.uuid4().hex, "username": "", "date": ""}
    content = {"code": code, "silent": False, "store_history": False, "allow_stdin": False}
    request = {"header": header, "parent_header": {}, "metadata": {}, "content": content}
    channel.send(json.dumps(request | {"channel": "shell", "buffers": []}))
    printed = ""
    try:
        while True:
            reply = json.loads(channel.recv())
            if reply["parent_header"].get("msg_id") != message:
                continue
            content = reply["content"]
            if reply["msg_type"] == "stream":
                printed += content["text"]
            if reply["msg_type"] == "error":
                pytest.fail("\n".join(content["traceback"]))
            if reply["msg_type"] == "status" and content["execution_state"] == "idle":
                return dict(json.loads(printed.splitlines()[-1]))
    finally:
        channel.close()


@dataclass
class Class:
    """The running hub and what it was made of."""

    url: str
    homes: Path
    own_accounts: bool
    people: dict[str, Person] = field(default_factory=dict)


@pytest.fixture(scope="module")
def school() -> Iterator[Class]:
    commands, proxy = hub_tools()
    # Not pytest's folder: other accounts may not enter that one.
    base = Path(tempfile.mkdtemp(prefix="llmlab-hub-"))
    base.chmod(0o755)
    homes, shared = base / "home", base / "shared"
    shared.mkdir()
    own = separate_python() is not None
    uids = {name: FIRST_UID + n for n, name in enumerate(NAMES)} if own else {}
    for name in NAMES:
        (homes / name).mkdir(parents=True)
        (homes / name).chmod(0o700)
        if own:
            os.chown(homes / name, uids[name], uids[name])
    port, hub_port, api_port = free_ports(3)
    config = base / "config.py"
    config.write_text(
        CONFIG.format(
            recipe=str(ROOT / "solutions" / "jupyterhub_config.py"), uids=uids, homes=str(homes),
            password=PASSWORD, names=NAMES, port=port, hub_port=hub_port, api_port=api_port,
            proxy=str(proxy),
        )
    )  # fmt: skip
    environment = {**os.environ, "LLMLAB_HUB_DIR": str(shared), "LANG": "C.UTF-8"}
    environment = {k: v for k, v in environment.items() if k not in ("LLMLAB_DATA_DIR", "COLUMNS")}
    # The teacher unpacks the model once.
    teacher = environment | {"LLMLAB_CACHE_DIR": str(shared / "cache")}
    code = "from llmlab.engine import load_model; load_model()"
    subprocess.run([sys.executable, "-c", code], env=teacher, check=True, timeout=120)
    with (base / "hub.log").open("wb") as log:
        hub = subprocess.Popen(
            [commands / "jupyterhub", "-f", config], env=environment, stdout=log, stderr=log,
            cwd=base, start_new_session=True,
        )  # fmt: skip
    room = Class(f"http://127.0.0.1:{port}", homes, own)
    try:
        until("the hub", lambda: httpx.get(f"{room.url}/hub/health").status_code == 200, 60)
        for name in NAMES:
            person = room.people[name] = Person(room.url, name)
            assert person.login().status_code == 200
            person.start()
        yield room
    except BaseException:
        print((base / "hub.log").read_text(errors="replace")[-4000:])
        raise
    finally:
        hub.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            hub.wait(40)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(hub.pid, signal.SIGKILL)
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), 1).close()
            pytest.fail("the proxy still listens")
        shutil.rmtree(base, ignore_errors=True)


ATTEMPT = """
import json, os, warnings
from pathlib import Path
warnings.simplefilter("error")
from llmlab.check import check, current_student, find_item
from llmlab.check.store import default_store
student = current_student()
tokens = find_item("B12.gaps").parameters_for(student)["tokens"]
state = check("B12.gaps", tokens - {slip}).state
Path("mine.txt").write_text(student.name)
seen = [(e.student, e.data["state"]) for e in default_store().events("attempt")]
print(json.dumps(dict(state=state, student=student.name, seen=seen, cwd=os.getcwd(),
    store=str(default_store().path), uid=os.getuid(), pid=os.getppid(),
    token=os.environ["JUPYTERHUB_API_TOKEN"])))
"""


@pytest.fixture(scope="module")
def done(school: Class) -> dict[str, dict[str, Any]]:
    """Ada answers right, Grace wrong, each in a kernel of her own server."""
    slips = {"ada": 1, "grace": 0}
    return {n: school.people[n].run(ATTEMPT.format(slip=slips[n])) for n in NAMES}


def test_nobody_comes_in_by_a_wrong_password_or_an_unknown_name(school: Class) -> None:
    assert Person(school.url, "ada").login("a wrong password").status_code == 403
    assert Person(school.url, "mallory").login().status_code == 403
    page = httpx.get(f"{school.url}/user/ada/api/contents", follow_redirects=False)
    assert page.status_code in (302, 403)


def test_each_has_a_name_numbers_work_and_progress_of_their_own(
    school: Class, done: dict[str, dict[str, Any]]
) -> None:
    assert done["ada"]["seen"] == [["ada", "correct"]]
    assert done["grace"]["seen"] == [["grace", "incorrect"]]
    for name, result in done.items():
        assert result["student"] == name
        for key in ("cwd", "store"):
            assert Path(result[key]).is_relative_to(school.homes / name)
        assert (school.homes / name / "work" / "mine.txt").read_text() == name
        listed = school.people[name].api("GET", f"/user/{name}/api/contents").json()["content"]
        assert {"00_start_here.ipynb", "mine.txt"} <= {entry["name"] for entry in listed}


def test_no_token_opens_the_other_server(school: Class, done: dict[str, dict[str, Any]]) -> None:
    for name, other in (NAMES, NAMES[::-1]):
        person = school.people[name]
        assert person.api("GET", f"/user/{name}/api/contents/mine.txt").status_code == 200
        for token in (person.token, done[name]["token"]):
            for path in (f"/user/{other}/api/contents/mine.txt", f"/hub/api/users/{other}"):
                assert person.api("GET", path, token).status_code in (403, 404), path
        # The browser's session, too, is shown a page of refusal.
        reply = person.http.get(f"/user/{other}/api/contents/mine.txt")
        assert reply.status_code in (403, 404)
        assert done[other]["token"] not in reply.text


def test_one_unpacked_model_serves_all(school: Class) -> None:
    code = """
import json, warnings
from pathlib import Path
warnings.simplefilter("error")
from llmlab.engine import load_model
model = load_model()
print(json.dumps(dict(layers=len(model.layers), own=(Path.home() / ".cache/llmlab").exists())))
"""
    assert school.people["grace"].run(code) == {"layers": 30, "own": False}


def test_a_new_start_keeps_the_work(school: Class, done: dict[str, dict[str, Any]]) -> None:
    ada = school.people["ada"]
    lab = school.homes / "ada" / "work" / "01_two_phases.ipynb"
    lab.write_text(lab.read_text().replace("two", "TWO"))
    mine = lab.read_bytes()
    assert ada.api("DELETE", "/hub/api/users/ada/server").status_code in (202, 204)
    until("the stop", lambda: not ada.api("GET", "/hub/api/users/ada").json()["server"])
    ada.start()
    assert lab.read_bytes() == mine
    assert ada.run(ATTEMPT.format(slip=1))["seen"] == [["ada", "correct"]] * 2


def test_the_system_keeps_accounts_apart(school: Class, done: dict[str, dict[str, Any]]) -> None:
    if not school.own_accounts:
        pytest.skip("needs root and a Python that every account may run; here all is one account")
    assert done["ada"]["uid"] != done["grace"]["uid"]
    grace = done["grace"]
    database = school.homes.parent / "shared" / "hub" / "jupyterhub.sqlite"
    assert database.exists()
    private = [f"/proc/{grace['pid']}/environ", grace["store"], f"{grace['cwd']}/mine.txt"]
    code = f"""
import json
refused = []
for path in {[*private, str(database)]}:
    try:
        open(path, "rb").read()
    except PermissionError:
        refused.append(path)
print(json.dumps(dict(refused=refused)))
"""
    assert school.people["ada"].run(code) == {"refused": [*private, str(database)]}
