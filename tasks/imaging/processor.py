"""The image-only processor of Qwen2.5-VL, as training and serving use it: PIL in place of torchvision, no video."""

import json
import shutil
from pathlib import Path
from typing import Any

from transformers import Qwen2_5_VLProcessor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

OWN_MODULE = "processing_image_only"  # this file's name in a checkpoint's folder


class ImageOnlyProcessor(Qwen2_5_VLProcessor):
    """Qwen2.5-VL's processor without its video part, which needs torchvision."""

    def __init__(
        self, image_processor: Any = None, tokenizer: Any = None, chat_template: str | None = None, **kwargs: Any
    ) -> None:
        super().__init__(image_processor, tokenizer, None, chat_template=chat_template, **kwargs)  # type: ignore[no-untyped-call]

    def save_pretrained(self, save_directory: Any, push_to_hub: bool = False, **kwargs: Any) -> Any:
        """Write the processor as Qwen's own class, with the video part that class asks for when it opens a folder.

        Where torchvision is missing, Qwen's class cannot be opened, whatever the folder says: its video part cannot
        be left out. `AutoProcessor.from_pretrained(folder, trust_remote_code=True)` opens this class, whose file is
        copied beside the weights.
        """
        saved = super().save_pretrained(save_directory, push_to_hub=push_to_hub, **kwargs)
        folder = Path(save_directory)
        shutil.copyfile(__file__, folder / f"{OWN_MODULE}.py")
        config = json.loads((folder / "processor_config.json").read_text(encoding="utf-8"))
        own = {"AutoProcessor": f"{OWN_MODULE}.{ImageOnlyProcessor.__qualname__}"}
        _write(folder / "processor_config.json", {**config, "auto_map": own})
        size = self.image_processor.size
        budget = {edge: int(size[edge]) for edge in ("shortest_edge", "longest_edge")}
        _write(
            folder / "video_preprocessor_config.json",
            {"video_processor_type": "Qwen2VLVideoProcessor", "size": budget},
        )
        return saved


# The name that is saved, and by which verl tells what a processor can do: it refuses names that it does not know.
ImageOnlyProcessor.__name__ = Qwen2_5_VLProcessor.__name__


def image_processor(min_pixels: int, max_pixels: int) -> Qwen2VLImageProcessorPil:
    """Qwen's image processor on PIL, bringing every picture between the two sizes."""
    return Qwen2VLImageProcessorPil(size={"shortest_edge": min_pixels, "longest_edge": max_pixels})


def load_processor(path: str, min_pixels: int | None = None, max_pixels: int | None = None) -> ImageOnlyProcessor:
    """The processor of a checkpoint, where given with another pixel budget."""
    processor = ImageOnlyProcessor.from_pretrained(path)
    processor.tokenizer.padding_side = "left"
    if min_pixels is not None and max_pixels is not None:
        processor.image_processor = image_processor(min_pixels, max_pixels)
    return processor


def _write(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
