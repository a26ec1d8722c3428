"""Image-only processors of Qwen2.5-VL and Qwen3-VL, as training and serving use them: PIL, no torchvision, no video."""

import json
import shutil
from pathlib import Path
from typing import Any

from transformers import ProcessorMixin, Qwen2_5_VLProcessor, Qwen3VLProcessor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

OWN_MODULE = "processing_image_only"  # this file's name in a checkpoint's folder
# What a checkpoint's image processor says of its vision tower; its pixel budget may be another in training.
_OF_TOWER = ("patch_size", "temporal_patch_size", "merge_size", "image_mean", "image_std")


class _ImageOnly(ProcessorMixin):
    """A processor of Qwen without its video part, which needs torchvision."""

    video_processor_type: str

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
        own = {"AutoProcessor": f"{OWN_MODULE}.{type(self).__qualname__}"}
        _write(folder / "processor_config.json", {**config, "auto_map": own})
        size = self.image_processor.size
        budget = {edge: int(size[edge]) for edge in ("shortest_edge", "longest_edge")}
        _write(
            folder / "video_preprocessor_config.json",
            {"video_processor_type": self.video_processor_type, "size": budget},
        )
        return saved


class ImageOnlyProcessor(_ImageOnly, Qwen2_5_VLProcessor):
    """Qwen2.5-VL's."""

    video_processor_type = "Qwen2VLVideoProcessor"


class ImageOnlyQwen3Processor(_ImageOnly, Qwen3VLProcessor):
    """Qwen3-VL's, dense or with experts."""

    video_processor_type = "Qwen3VLVideoProcessor"


# The name that is saved, and by which verl tells what a processor can do: it refuses names that it does not know.
ImageOnlyProcessor.__name__ = Qwen2_5_VLProcessor.__name__
ImageOnlyQwen3Processor.__name__ = Qwen3VLProcessor.__name__
PROCESSORS: dict[str, type[_ImageOnly]] = {
    "qwen2_5_vl": ImageOnlyProcessor,
    "qwen3_vl": ImageOnlyQwen3Processor,
    "qwen3_vl_moe": ImageOnlyQwen3Processor,
}


def image_processor(min_pixels: int, max_pixels: int, **tower: Any) -> Qwen2VLImageProcessorPil:
    """Qwen's image processor on PIL, bringing every picture between the two sizes; `tower` is as in `_OF_TOWER`."""
    return Qwen2VLImageProcessorPil(size={"shortest_edge": min_pixels, "longest_edge": max_pixels}, **tower)


def load_processor(path: str, min_pixels: int | None = None, max_pixels: int | None = None) -> Any:
    """The processor of a Qwen checkpoint, where given with another pixel budget."""
    kind = json.loads((Path(path) / "config.json").read_text(encoding="utf-8"))["model_type"]
    processor = PROCESSORS[kind].from_pretrained(path)
    processor.tokenizer.padding_side = "left"
    if min_pixels is not None and max_pixels is not None:
        tower = {name: getattr(processor.image_processor, name) for name in _OF_TOWER}
        processor.image_processor = image_processor(min_pixels, max_pixels, **tower)
    return processor


def _write(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
