"""``captioner prepare``: a trainer that can fill the annotation cache ahead of training."""

import pytorch_lightning as pl

from captioner.data.module import CaptionDataModule
from captioner.errors import UsageError, plural
from captioner.photos.region_files import RegionFiles
from captioner.training.task import CaptioningTask


class Trainer(pl.Trainer):
    """Lightning's trainer, which can also fill the annotation cache and stop."""

    def prepare(
        self, model: CaptioningTask, datamodule: CaptionDataModule, verify: bool = False
    ) -> None:
        """Fill the annotation cache ahead of training; several processes may share the work.

        Args:
            verify: also check the whole cache, and recompute annotations whose checksum is wrong.
        """
        encoder = model.captioner.encoder
        preprocessing = encoder.preprocessing
        if isinstance(preprocessing, RegionFiles) or not datamodule.caches(encoder.trainable):
            raise UsageError(
                "region features need no cache, nor does a trainable encoder or data.cache false: give "
                "--data.cache images to cache the photos at the size of the encoder's input"
            )
        datamodule.check_crops(encoder.trainable)
        encoder.load_pretrained()
        device = self.strategy.root_device
        cache, *crops = datamodule.fill_cache(encoder.to(device), device, verify)
        if cache.grid is None:
            content = f"{preprocessing.height} × {preprocessing.width} pixels"
        else:
            rows, columns = cache.grid
            content = f"{rows} × {columns} annotation vectors of width {encoder.out_dim}"
        if cache.key_grid:
            rows, columns = cache.key_grid
            content += f" and {rows} × {columns} keys of width {encoder.key_dim}"
        if crops:
            content += f", and {plural(len(crops), 'crop')} of each training photo"
        gigabytes = sum(each.bytes for each in (cache, *crops)) / 1e9
        left_out = len(set().union(*(each.failed for each in (cache, *crops))))
        print(
            f"{plural(len(datamodule.records), 'photo')} × {content}, {gigabytes:.2f} GB, {left_out} "
            f"left out, in {datamodule.cache_dir}{', all checksums match' if verify else ''}"
        )
