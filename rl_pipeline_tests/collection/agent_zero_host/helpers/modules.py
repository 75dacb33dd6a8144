"""How Agent Zero loads the classes of a file."""

import importlib.util
import inspect
from pathlib import Path


def load_classes_from_file(file, base_class):
    spec = importlib.util.spec_from_file_location(Path(file).stem, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = [cls for _, cls in inspect.getmembers(module, inspect.isclass)]
    return [cls for cls in reversed(found) if cls is not base_class and issubclass(cls, base_class)][:1]
