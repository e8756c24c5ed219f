"""Load tests against a gateway and against Mosquitto, and their page in a browser."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from gateway_process import GatewayProcess
from mosquitto_broker import MosquittoBroker

from iotmq.commands.cli import main
from loadtest.runs.result import read_result

pytestmark = pytest.mark.interop

BROWSER = next(
    (
        found
        for name in ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
        if (found := shutil.which(name))
    ),
    None,
)
QUICK = ["--seconds", "1", "--warmup", "0.2", "--rate", "2000", "--publishers", "20", "--quiet"]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with GatewayProcess(tmp_path_factory.mktemp("gateway") / "data") as gateway:
        yield gateway


@pytest.fixture(scope="module")
def mosquitto_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    if shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin:/usr/bin") is None:
        pytest.skip("Mosquitto is not installed (Debian: apt install mosquitto)")
    with MosquittoBroker(tmp_path_factory.mktemp("mosquitto")) as broker:
        yield broker.port


@pytest.fixture(params=["gateway", "mosquitto"])
def port(request: pytest.FixtureRequest) -> int:
    if request.param == "gateway":
        return int(request.getfixturevalue("gateway").mqtt_port)
    return int(request.getfixturevalue("mosquitto_port"))


@pytest.mark.parametrize("version", [[], ["--mqtt5"]], ids=["3.1.1", "5"])
@pytest.mark.parametrize(
    "words",
    [
        ["--subscribers", "2", "--qos", "0"],
        ["--subscribers", "2", "--processes", "2"],
        ["--subscribers", "1", "--qos", "2"],
        ["--subscribers", "4", "--filter", "$share/g/devices/+/telemetry"],
        ["--subscribers", "20", "--filter", "devices/%i/telemetry", "--payload-sizes", "30-3000"],
        ["--subscribers", "1", "--payload", '{"n": %s, "stamp": "%x"}', "--topic", "devices/%c/telemetry"],
        ["--subscribers", "5", "--keep-sessions", "--leave-rate", "20", "--return-after", "0.05"],
        ["--subscribers", "4", "--filter", "$share/g/devices/+/telemetry", "--processes", "3"],
        ["--subscribers", "2", "--filter", "$share/g%i/devices/+/telemetry", "--processes", "2"],
        # Who is away at the end comes back to what is kept.
        ["--subscribers", "2", "--rate", "99", "--keep-sessions", "--leave-rate", "2", "--return-after", "2"],
        # Nobody can tell what those miss who have no session meanwhile.
        ["--subscribers", "5", "--leave-rate", "20", "--return-after", "0.1"],
        ["--subscribers", "5", "--resubscribe-rate", "20"],
        ["--subscribers", "1", "--rate-from", "100", "--ramp", "1"],
    ],
    ids=lambda words: " ".join(words[2:]) if words else "",
)
def test_nothing_is_lost_or_repeated(port: int, version: list[str], words: list[str], tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    # Client ids of their own: sessions of the case before are no concern of this one.
    names = ["--client-id", f"{tmp_path.name}-{{kind}}-%i"]
    main(["loadtest", "run", "--port", str(port), *QUICK, *version, *names, *words, "--json", str(path)])
    result = read_result(path)
    assert result["verdict"] == []
    assert result["counters"]["delivered"] >= 100
    came_and_went = "--keep-sessions" not in words and {"--leave-rate", "--resubscribe-rate"} & set(words)
    assert result["missing"] == (None if came_and_went else 0)


def test_the_counts_are_those_of_the_server(gateway: GatewayProcess, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    before = gateway.metric("iotmq_mqtt_published_total")
    words = ["--port", str(gateway.mqtt_port), "--publishers", "10", "--messages", "5000", "--warmup", "0"]
    assert main(["loadtest", "run", "--quiet", *words, "--json", str(path)]) == 0
    assert gateway.metric("iotmq_mqtt_published_total") - before == 5_000
    assert read_result(path)["counters"]["acknowledged"] == 5_000


@pytest.mark.skipif(
    BROWSER is None, reason="Chromium is not installed (Debian: apt install chromium-headless-shell)"
)
def test_a_page_of_two_tests_in_a_browser(gateway: GatewayProcess, tmp_path: Path) -> None:
    assert gateway.process is not None
    paths = []
    for number, rate in enumerate(("1000", "2000")):
        paths.append(tmp_path / f"{number}.json")
        words = [
            "--port",
            str(gateway.mqtt_port),
            *QUICK,
            "--rate",
            rate,
            "--seconds",
            "3",
            "--subscribers",
            "2",
        ]
        words += [
            "--server-pid",
            str(gateway.process.pid),
            "--name",
            f"{rate} a second",
            "--json",
            str(paths[-1]),
        ]
        assert main(["loadtest", "run", *words]) == 0
    page, picture = tmp_path / "page.html", tmp_path / "page.png"
    assert main(["loadtest", "report", *map(str, paths), "--output", str(page)]) == 0
    assert BROWSER is not None
    words = [
        BROWSER,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-first-run",
    ]
    words += [f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1280,2400", "--timeout=20000"]
    done = subprocess.run(
        [*words, f"--screenshot={picture}", f"file://{page}"], capture_output=True, timeout=90, check=False
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    assert struct.unpack(">II", picture.read_bytes()[16:24]) == (1_280, 2_400)
    measured = subprocess.run(
        [*words, "--dump-dom", f"file://{page}"], capture_output=True, text=True, timeout=90, check=False
    )
    assert measured.stdout.count("<svg") >= 6
    rates = [json.loads(path.read_text())["rates"]["published_per_s"] for path in paths]
    assert rates == pytest.approx([1_000, 2_000], rel=0.1)
    assert f"{(rates[1] / rates[0] - 1) * 100:+.1f} %" in measured.stdout
