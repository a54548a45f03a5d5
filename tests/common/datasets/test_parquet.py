"""Folders of Parquet files, and data sets of the Hugging Face hub."""

import io
import os
import shutil
import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from common import tables
from common.datasets import load
from tests.common.datasets.sources import REPO, in_another_process, picture, refusal

CIFAR10 = Path(os.environ.get("SPECFED_TEST_CIFAR10", REPO.parent / "shared" / "data" / "cifar10"))
needs_cifar10 = pytest.mark.skipif(not CIFAR10.is_dir(), reason="no CIFAR-10 in Parquet files here")


def cell(value: int) -> dict[str, object]:
    file = io.BytesIO()
    picture(value).save(file, "PNG")
    return {"bytes": file.getvalue(), "path": None}


def parquet_folder(root: Path, image: str, label: str, typed: bool = True, **halves: list[int]) -> Path:
    """A picture of grey level ``10 * label`` for each label of each half."""
    import datasets

    features = {
        image: datasets.Image()
        if typed
        else {"bytes": datasets.Value("binary"), "path": datasets.Value("string")},
        label: datasets.ClassLabel(names=["a", "b", "c", "d"]) if typed else datasets.Value("int32"),
    }
    root.mkdir(parents=True, exist_ok=True)
    for half, labels in halves.items():
        rows = {image: [cell(10 * value) for value in labels], label: labels}
        table = datasets.Dataset.from_dict(rows, features=datasets.Features(features))
        with tables._no_progress_bars():
            table.to_parquet(root / f"{half}-00000-of-00001.parquet")
    return root


@pytest.mark.parametrize(("typed", "classes"), [(True, 4), (False, 3)])
def test_parquet_folders(tmp_path: Path, typed: bool, classes: int) -> None:
    folder = parquet_folder(tmp_path / "data", "img", "fine_label", typed, train=[2, 0, 1], test=[1, 0])
    test, train = load(str(folder), "test"), load(str(folder), "train")
    # ClassLabel names four classes; of plain labels, the training half's largest counts for both.
    assert train.classes == test.classes == classes
    assert (train.y.tolist(), train.x[:, 0, 0, 0].tolist()) == ([2, 0, 1], [20, 0, 10])
    assert (test.y.tolist(), test.x[:, 0, 0, 0].tolist()) == ([1, 0], [10, 0])
    assert train.input_shape == (1, 4, 5)
    assert train.names == test.names == (("a", "b", "c", "d") if typed else ())


def test_columns_are_found_by_type_under_any_name(tmp_path: Path) -> None:
    folder = parquet_folder(tmp_path / "data", "scan", "diagnosis", train=[3, 1])
    assert load(str(folder), "train").y.tolist() == [3, 1]


def test_parquet_files_in_a_data_folder_in_several_parts(tmp_path: Path) -> None:
    folder = parquet_folder(tmp_path / "set" / "data", "image", "label", train=[1, 2])
    (folder / "train-00000-of-00001.parquet").rename(folder / "train-00001-of-00002.parquet")
    parquet_folder(folder, "image", "label", train=[3])
    assert load(str(folder.parent), "train").y.tolist() == [3, 1, 2]


def test_parquet_folders_that_cannot_be_used(tmp_path: Path) -> None:
    import datasets

    folder = parquet_folder(tmp_path / "a", "image", "label", train=[1])
    assert refusal(folder, "test") == f"folder {folder} has no files test-*.parquet"

    (folder / "train-00000-of-00001.parquet").write_bytes(b"PAR1 and then nothing")
    assert refusal(folder).startswith(f"cannot read train-*.parquet in {folder}: ArrowInvalid")

    untyped = parquet_folder(tmp_path / "b", "scan", "label", typed=False, train=[1])
    assert refusal(untyped) == (
        f'{untyped}, train: column "scan" holds no numbers, as each column beside the label must; '
        "texts stand in one named text or sentence or content, pictures in one named img or image"
    )
    unlabelled = parquet_folder(tmp_path / "c", "image", "target", typed=False, train=[1])
    assert refusal(unlabelled) == (
        f"{unlabelled}, train has no column of type ClassLabel nor one named label or labels or fine_label; "
        "it has image, target"
    )
    numbers = tmp_path / "d"
    numbers.mkdir()
    with tables._no_progress_bars():
        datasets.Dataset.from_dict({"image": [1, 2], "label": [0, 1]}).to_parquet(numbers / "train.parquet")
    assert refusal(numbers).startswith(f'{numbers}, train: column "image" holds no pictures: ')

    rows = {"image": [cell(1), None], "label": [0, 1]}
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int32")})
    gap = tmp_path / "g"
    gap.mkdir()
    with tables._no_progress_bars():
        datasets.Dataset.from_dict(rows, features=features).to_parquet(gap / "train.parquet")
    assert refusal(gap) == f"{gap}, train, row 1 has no picture"

    hidden = parquet_folder(tmp_path / "e", "image", "label", train=[0, -1])
    assert refusal(hidden) == f"{hidden}, train: labels must lie in 0..3; found -1"

    newer = parquet_folder(tmp_path / "f", "image", "label", typed=False, train=[0, 1], test=[2])
    assert refusal(newer, "test") == f"{newer}, test: labels must lie in 0..1; found 2"


@needs_cifar10
@pytest.mark.slow
def test_cifar10() -> None:
    train, test = load(str(CIFAR10), "train"), load(str(CIFAR10), "test")
    assert (len(train), len(test)) == (50_000, 10_000)
    assert (train.input_shape, train.classes, train.x.dtype) == ((3, 32, 32), 10, np.uint8)
    assert np.bincount(train.y).tolist() == [5_000] * 10
    assert np.bincount(test.y).tolist() == [1_000] * 10


def test_a_hub_data_set(tmp_path: Path, cache: Path) -> None:
    """Out of the library's own cache, laid out as it leaves it after a download."""
    import datasets

    parquet_folder(tmp_path / "source", "image", "label", train=[2, 1])
    with tables._no_progress_bars():
        datasets.load_dataset(str(tmp_path / "source"), cache_dir=str(tmp_path / "built"))
    (info,) = (tmp_path / "built").glob("*/*/*/*/dataset_info.json")
    home = tmp_path / "home" / "datasets" / "owner___tiny" / "default" / "0.0.0" / "abc"
    shutil.copytree(info.parent, home)
    next(home.glob("*-train.arrow")).rename(home / "tiny-train.arrow")

    code = (
        "from common.datasets import load; e = load('owner/tiny', 'train'); "
        "print(e.y, e.x[:, 0, 0, 0], e.classes)"
    )
    offline = {"HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1"}
    assert in_another_process(code, **offline) == "[2 1] [20 10] 4"
    shutil.rmtree(tmp_path / "home")
    assert in_another_process(code, **offline) == "[2 1] [20 10] 4"  # from our cache


def test_a_hub_data_set_that_cannot_be_had(tmp_path: Path) -> None:
    code = """
from common.datasets import load
from common.errors import DataError
for name in ("owner/nothing", "digts"):
    try:
        load(name, "test")
    except DataError as error:
        print(error)
"""
    lines = in_another_process(code, HF_HOME=str(tmp_path), HF_HUB_OFFLINE="1").split("\n")
    assert len(lines) == 2
    start = (
        'data "owner/nothing" (test) is neither a file or folder nor to be had from the Hugging Face hub: '
    )
    assert lines[0].startswith(start)
    assert lines[1].endswith('Did you mean "digits"?')


@pytest.mark.parametrize(
    ("said_first", "answers"),
    [
        ("HTTP/1.1 200 OK", True),
        ("HTTP/1.1 403 Forbidden", True),
        (None, False),
        ("SSH-2.0-OpenSSH_9.6", False),
    ],
)
def test_a_hub_that_says_nothing_or_no_http_is_not_asked_again(
    monkeypatch: pytest.MonkeyPatch, said_first: str | None, answers: bool
) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as hub:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{hub.getsockname()[1]}")
        monkeypatch.setenv("HF_HUB_OFFLINE", "0")
        monkeypatch.setattr(tables, "HUB_SECONDS", 0.3 if said_first is None else 10.0)
        with ThreadPoolExecutor(1) as pool:
            said = pool.submit(tables._hub_answers)
            connection, _ = hub.accept()
            with connection:
                if said_first is not None:
                    connection.recv(1000)
                    connection.sendall(f"{said_first}\r\nContent-Length: 0\r\n\r\n".encode())
                assert said.result() is answers


def test_without_a_hub_the_librarys_cache_is_looked_into_at_once(tmp_path: Path) -> None:
    code = """
import os
from common.datasets import load
from common.errors import DataError
try:
    load("owner/nothing", "train")
except DataError:
    print(os.environ["HF_HUB_OFFLINE"])
"""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        nobody = f"http://127.0.0.1:{closed.getsockname()[1]}"
    assert in_another_process(code, HF_HOME=str(tmp_path), HF_ENDPOINT=nobody, no_proxy="127.0.0.1") == "1"


def test_a_hub_whose_certificate_python_does_not_know_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    made = x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + timedelta(days=1))
    pem = made.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)
    (tmp_path / "pem").write_bytes(pem + key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "pem")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as hub, ThreadPoolExecutor(1) as pool:
        monkeypatch.setenv("HF_ENDPOINT", f"https://127.0.0.1:{hub.getsockname()[1]}")
        said = pool.submit(tables._hub_answers)
        connection, _ = hub.accept()
        with connection, suppress(ssl.SSLError), context.wrap_socket(connection, server_side=True):
            pass
        assert said.result() is True
