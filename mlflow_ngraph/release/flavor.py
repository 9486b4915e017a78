"""MLflow flavor ``ngraph``: save, log, load and serve engines as MLflow models.

`load_model` does without pyfunc and runs no code from the model, only the engine's runtime.
``mlflow.pyfunc.load_model`` and ``mlflow models serve`` call `_load_pyfunc`.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from weakref import finalize

from mlflow_ngraph.engines import signing
from mlflow_ngraph.engines import trust as trusting
from mlflow_ngraph.engines.batches import Batching
from mlflow_ngraph.engines.files import digest_files
from mlflow_ngraph.engines.local_engine import LoadedEngine, open_prepared
from mlflow_ngraph.engines.manifest import ENGINE_DIRECTORY
from mlflow_ngraph.engines.model_files import FLAVOR, check
from mlflow_ngraph.engines.package import open_package, read_manifest, require_name, require_outside, write_manifest
from mlflow_ngraph.engines.package import sign as sign_package
from mlflow_ngraph.error_text import for_strangers
from mlflow_ngraph.errors import EngineError, NGraphError, UsageError
from mlflow_ngraph.release import consent
from mlflow_ngraph.tracking import model_files

if TYPE_CHECKING:
    import numpy as np
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from mlflow.models import Model
    from mlflow.models.model import ModelInfo
    from numpy.typing import NDArray

    from mlflow_ngraph.engines.package import Package

FLAVOR_NAME = FLAVOR


def load_model(
    model_uri: str | Path,
    *,
    batching: Batching = "exact",
    tracking_uri: str | None = None,
    trust: str | Path | None = None,
    run: bool = False,
) -> LoadedEngine:
    """Load an engine from a package on disk or from a tracking server.

    Digests, requirements and trust rules are checked before a runtime opens any file. A package from a server must have
    the logged manifest.

    Parameters
    ----------
    model_uri : str | Path
        A directory, or what MLflow calls a model: ``models:/name@alias``, ``models:/name/1``, ``models:/m-...``,
        ``runs:/...``.
    batching : Batching
        Policy for batch sizes that the engine was not compiled for: ``exact`` refuses them, ``pad`` fills up,
        ``split`` cuts into pieces.
    tracking_uri : str | None
        MLflow's own default when left out.
    trust : str | Path | None
        A file with rules, or ``any`` for none; by default ``$NGRAPH_TRUST``, else ``trust.yaml`` in the home directory.
    run : bool
        Let an engine that is a program run although no rule allows it. This home remembers it.

    Raises
    ------
    EngineError
        The package is not trusted, is a program that nobody has allowed, is damaged, does not fit this machine, or cannot
        be loaded; names the file or the difference, and the command that builds the engine here.
    TrackingError
        The server cannot be reached, or knows no such model.
    UsageError
        ``model_uri`` is empty.
    """
    require_name(model_uri)
    rules = trusting.load(trust)
    local = Path(model_uri)
    if local.is_dir():
        package = open_prepared(local)
        consent.require_package(package, local, rules, run)
        return LoadedEngine(package, batching=batching)
    if ":" not in str(model_uri) and not str(model_uri).startswith("m-"):
        raise EngineError(f"there is no engine package at {local}")
    from mlflow_ngraph.tracking import connection, download
    from mlflow_ngraph.tracking.trusted import trusted_manifest

    uri = connection.resolve_uri(tracking_uri)
    trusting.require_source(uri, rules)
    temporary = TemporaryDirectory(prefix="ngraph-engine-")
    try:
        remote = download.locate(str(model_uri), uri)
        offer = trusted_manifest(remote, rules)
        consent.require(offer.manifest, str(remote.digest), offer.trusted, run)
        package = download.fill(remote, offer.manifest, offer.content, Path(temporary.name) / "package")
        engine = LoadedEngine(package, batching=batching)
    except BaseException:
        temporary.cleanup()
        raise
    # Runtimes map their files, which have to outlive the engine.
    finalize(engine, temporary.cleanup)
    return engine


def save_model(
    engine: LoadedEngine | str | Path,
    path: str | Path,
    mlflow_model: Model | None = None,
    *,
    pip_requirements: Sequence[str] | None = None,
    extra_pip_requirements: Sequence[str] = (),
    sign: str | Path | Ed25519PrivateKey | None = None,
) -> None:
    """Write a package with a model of MLflow in it to a new directory.

    Parameters
    ----------
    engine : LoadedEngine | str | Path
        A loaded engine, or the directory of a package.
    mlflow_model : Model | None
        Passed by MLflow.
    pip_requirements : Sequence[str] | None
        Replace the engine's requirements, as with this package's wheel.
    extra_pip_requirements : Sequence[str]
        Added to the requirements.
    sign : str | Path | Ed25519PrivateKey | None
        Private key or its file; signs the new manifest. A signature of the source package is not copied.

    Raises
    ------
    EngineError
        The package is damaged.
    UsageError
        ``path`` exists and is not empty, or is inside of a package, or the key cannot be used.
    """
    key = _key(sign)
    _save(engine, Path(path), mlflow_model, pip_requirements, extra_pip_requirements, key)


def log_model(
    engine: LoadedEngine | str | Path,
    name: str | None = None,
    *,
    registered_model_name: str | None = None,
    tags: Mapping[str, str] | None = None,
    params: Mapping[str, Any] | None = None,
    pip_requirements: Sequence[str] | None = None,
    extra_pip_requirements: Sequence[str] = (),
    sign: str | Path | Ed25519PrivateKey | None = None,
) -> ModelInfo:
    """Log a package as a LoggedModel with its digest.

    Studies log their engines themselves. This is for engines from elsewhere, such as another server.

    Parameters
    ----------
    engine : LoadedEngine | str | Path
        A loaded engine, or the directory of a package.
    name : str | None
        By default workload, compiler and precision.
    sign : str | Path | Ed25519PrivateKey | None
        As in `save_model`.

    Raises
    ------
    EngineError
        The package is damaged.
    UsageError
        The key cannot be used.
    """
    from mlflow import MlflowClient
    from mlflow.models import Model

    from mlflow_ngraph.tracking import schema
    from mlflow_ngraph.tracking.engine_log import package_tags

    package = _opened(engine)
    spec = package.manifest.spec
    key = _key(sign)
    saver = _Saver(key)
    info: ModelInfo = Model.log(
        artifact_path=None,
        name=name or schema.model_name(f"{package.manifest.origin.label}-{spec.compiler}-{spec.target.precision}"),
        flavor=saver,
        model_type=schema.MODEL_TYPE,
        registered_model_name=registered_model_name,
        params=dict(params or {}),
        tags=dict(tags or {}),
        engine=package.directory,
        pip_requirements=pip_requirements,
        extra_pip_requirements=extra_pip_requirements,
    )
    described = package_tags(package.manifest, saver.digest)
    if key is not None:
        described[schema.Tag.SIGNED_BY] = signing.fingerprint(signing.public_blob(signing.public_text(key)))
    MlflowClient().set_logged_model_tags(info.model_id, described)
    return info


class _Saver:
    """Flavor module for `Model.log` that keeps the digest of the saved package."""

    def __init__(self, key: Ed25519PrivateKey | None) -> None:
        self.__name__ = __name__
        self.digest = ""
        self._key = key

    def save_model(self, path: str, mlflow_model: Model, engine: Path, **options: Any) -> None:
        """Called by MLflow with a directory to upload."""
        self.digest = _save(
            engine, Path(path), mlflow_model, options["pip_requirements"], options["extra_pip_requirements"], self._key
        )


def _save(
    engine: LoadedEngine | str | Path,
    target: Path,
    mlflow_model: Model | None,
    pip_requirements: Sequence[str] | None,
    extra_pip_requirements: Sequence[str],
    key: Ed25519PrivateKey | None,
) -> str:
    """As `save_model`; return the digest of the manifest."""
    from mlflow.models import Model

    package = _opened(engine)
    if target.exists() and any(target.iterdir()):
        raise UsageError(f"{target} exists and is not empty: choose another directory")
    require_outside(target)
    target.mkdir(parents=True, exist_ok=True)
    manifest = package.manifest
    model_files.write(
        target,
        manifest.spec,
        manifest.compiler_version,
        mlflow_model or Model(),
        size_bytes=manifest.size_bytes,
        pip_requirements=pip_requirements,
        extra_pip_requirements=extra_pip_requirements,
    )
    own = {path: digest for path, digest in manifest.files.items() if path.startswith(f"{ENGINE_DIRECTORY}/")}
    saved = manifest.model_copy(update={"files": dict(sorted({**own, **digest_files(target)}.items()))})
    check(target, saved)
    shutil.copytree(package.engine, target / ENGINE_DIRECTORY)
    digest = write_manifest(target, saved)
    if key is not None:
        sign_package(read_manifest(target, digest), key)
    return digest


def _key(given: str | Path | Ed25519PrivateKey | None) -> Ed25519PrivateKey | None:
    return signing.load_key(Path(given)) if isinstance(given, (str, Path)) else given


def _opened(engine: LoadedEngine | str | Path) -> Package:
    """Package of an engine; a directory is trusted first, as a loaded one was."""
    if isinstance(engine, LoadedEngine):
        return open_package(engine.directory)
    require_name(engine)
    package = open_package(Path(engine))
    trusting.require_package(package, Path(engine), trusting.load())
    return package


def _load_pyfunc(path: str, model_config: Mapping[str, Any] | None = None) -> PyfuncEngine:
    """Called by ``mlflow.pyfunc.load_model``. Accepts all batch sizes, unless ``batching`` is configured."""
    batching = (model_config or {}).get("batching", "split")
    return PyfuncEngine(load_model(Path(path), batching=batching))


class PyfuncEngine:
    """Engine behind ``mlflow.pyfunc``: mapping of inputs to mapping of outputs."""

    def __init__(self, engine: LoadedEngine) -> None:
        self.engine = engine

    def predict(self, model_input: Any, params: Mapping[str, Any] | None = None) -> dict[str, NDArray[np.generic]]:
        """Run the engine on inputs that MLflow has checked against the signature.

        ``model_input`` has arrays by name, or is a single array for an engine with one input. Raises `MlflowException`
        if an input is not what the engine takes, or it fails on these values; MLflow's server answers any other error
        with a traceback.
        """
        from mlflow.exceptions import MlflowException

        try:
            return self._outputs(model_input)
        except NGraphError as error:
            raise MlflowException.invalid_parameter_value(for_strangers(error)) from None

    def _outputs(self, given: Any) -> dict[str, NDArray[np.generic]]:
        import numpy as np

        if isinstance(given, Mapping):
            return self.engine.run({name: np.asarray(value) for name, value in given.items()})
        if isinstance(given, np.ndarray) and len(self.engine.inputs) == 1:
            return self.engine.run({self.engine.inputs[0].name: given})
        names = ", ".join(spec.name for spec in self.engine.inputs)
        raise UsageError(f"expected a mapping with the inputs {names}, found {type(given).__name__}")

    def get_raw_model(self) -> LoadedEngine:
        return self.engine
