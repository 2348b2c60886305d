"""JupyterHub for a class on one machine: an account a student, the labs in their ~/work.

    jupyterhub -f solutions/jupyterhub_config.py

Hub and labs live in one environment. Each server runs as the student's own Unix account, so
the operating system, not this file, keeps students apart. README.md says what to change.
"""

import os
import sys
from pathlib import Path

from llmlab.cli.labs import jupyter_environment

c = get_config()  # noqa: F821  (JupyterHub defines it)

BIN = Path(sys.executable).parent
SHARED = Path(os.environ.get("LLMLAB_HUB_DIR", "/srv/llmlab"))
STATE = SHARED / "hub"  # who is logged in, and the secret of the cookies: for the hub alone
STATE.mkdir(mode=0o700, parents=True, exist_ok=True)

# The hub: loopback only; a web server with a certificate stands before it.
c.JupyterHub.bind_url = "http://127.0.0.1:8000"
c.JupyterHub.db_url = f"sqlite:///{STATE}/jupyterhub.sqlite"
c.JupyterHub.cookie_secret_file = f"{STATE}/cookie_secret"
c.ConfigurableHTTPProxy.pid_file = f"{STATE}/proxy.pid"

# Who may come in: accounts of this machine, by their Unix group.
c.JupyterHub.authenticator_class = "pam"
c.LocalAuthenticator.allowed_groups = {"llmlab-students"}
c.LocalAuthenticator.admin_groups = {"llmlab-teachers"}

# A server each. New labs are copied in at every start; a lab that is there is never touched.
START = 'umask 077; "$0" labs --work "$HOME/work" >/dev/null && exec "$@"'
c.JupyterHub.spawner_class = "jupyterhub.spawner.LocalProcessSpawner"
c.Spawner.cmd = ["sh", "-c", START, str(BIN / "llmlab"), str(BIN / "jupyterhub-singleuser")]
c.Spawner.args = [
    "--LabApp.extension_manager=readonly",
    "--MappingKernelManager.cull_idle_timeout=3600",  # a kernel holds the model's memory
    "--MappingKernelManager.cull_interval=300",
]
c.Spawner.notebook_dir = "~/work"
c.Spawner.default_url = "/lab/tree/00_start_here.ipynb"
c.Spawner.start_timeout = 120
settings = jupyter_environment()
c.Spawner.environment = {
    "JUPYTER_CONFIG_PATH": settings["JUPYTER_CONFIG_PATH"],
    "JUPYTER_PREFER_ENV_PATH": settings["JUPYTER_PREFER_ENV_PATH"],
    # One unpacked model for all, made by the teacher, read-only for the rest.
    "LLMLAB_CACHE_DIR": str(SHARED / "cache"),
    # A machine of C cores on which K students compute at once: about C / K threads each.
    "OMP_NUM_THREADS": "2",
}
