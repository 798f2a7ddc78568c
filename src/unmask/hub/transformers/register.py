"""Our classes in the registers of transformers, as soon as it is used, whoever was imported first.

transformers has no entry points for models of others, and importing it costs seconds. So `import unmask` leaves a
finder in `sys.meta_path` that waits for the module with `AutoConfig`, registers our config when it has run, and goes
away. The first config that is made registers the model class (`register_model`): nobody else pays for importing it.
What is registered wins over the `auto_map` of a repository, also with trust_remote_code=True: no code of it is run.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

CONFIGS = "transformers.models.auto.configuration_auto"


def watch() -> None:
    """Register now where transformers is in use already, else when it comes."""
    module = sys.modules.get(CONFIGS)
    if module is not None and not getattr(module.__spec__, "_initializing", False):
        _register(module)
    elif not any(isinstance(finder, Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, Finder())


class Finder(MetaPathFinder):
    """Finds nothing itself: it has one module of transformers tell when it has run."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """What the other finders say of that module, with a loader that calls back."""
        if fullname != CONFIGS:
            return None
        others = [finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec")]
        spec = next((found for finder in others if (found := finder.find_spec(fullname, path, target))), None)
        if spec is not None and spec.loader is not None:
            spec.loader = Then(spec.loader, self)
        return spec


class Then(Loader):
    """A loader after which our config is registered; the module itself sees its own loader."""

    def __init__(self, loader: Any, finder: Finder) -> None:
        self.loader, self.finder = loader, finder

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """As the module's own loader does."""
        module: ModuleType | None = self.loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Run the module, then register."""
        module.__loader__ = self.loader
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader
        self.loader.exec_module(module)
        if self.finder in sys.meta_path:
            sys.meta_path.remove(self.finder)
        _register(module)


def _register(module: ModuleType) -> None:
    """Register our config; never in the way of somebody's import."""
    try:
        register_config(module)
    except Exception as error:  # another version of transformers, say: its own models must go on working
        warnings.warn(f"unmask could not register its models with transformers: {error}", stacklevel=2)


def register_config(module: ModuleType) -> None:
    """MDLMConfig for model type mdlm."""
    from .configuration import MDLMConfig

    module.AutoConfig.register("mdlm", MDLMConfig, exist_ok=True)


@functools.cache
def register_model() -> None:
    """MDLM for MDLMConfig: whoever wants the model has made a config before."""
    from transformers import AutoModelForMaskedLM

    from .configuration import MDLMConfig
    from .modeling import MDLM

    AutoModelForMaskedLM.register(MDLMConfig, MDLM, exist_ok=True)
