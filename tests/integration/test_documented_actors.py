"""The ancestor's documented example, as it stands but for the import line, with two producers feeding it."""

import pytest

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


def test_a_users_trainer_is_found_by_name_and_fed_by_several_at_once(ray_cluster, tmp_path):
    ray = ray_cluster
    import torch

    from proa import DetachedTrainer, Experience, TrainerCallback

    class Steps(TrainerCallback):
        def __init__(self, path):
            self.path = path

        def on_fit_end(self):
            self.path.write_text("over")

    @ray.remote(concurrency_groups={
        "buffer_length": 1, "buffer_append": 1,
        "buffer_sample": 1, "compute": 1
    })  # fmt: skip
    class MyTrainer(DetachedTrainer):
        def training_step(self, experience: Experience):
            # Implement training logic
            return {"loss": 0.0}

        def _update_remote_makers(self, fully_update=False, **kwargs):
            # Implement model sync to remote makers
            pass

    trainer = MyTrainer.options(name="trainer_0").remote(
        experience_maker_holder_name_list=["maker_0"],
        train_batch_size=8,
        callbacks=[Steps(tmp_path / "told")],
    )

    @ray.remote
    def produce(batches):
        found = ray.get_actor("trainer_0")
        for _ in range(batches):
            ray.get(found.buffer_append.remote(Experience(torch.zeros(8, 4), torch.zeros(8, 2))))
        return batches

    producers = [produce.remote(10), produce.remote(10)]
    ray.get(trainer.fit.remote(total_steps=20, update_steps=10, train_epochs=2), timeout=60)
    assert ray.get(producers) == [10, 10]
    assert ray.get(trainer.buffer_get_length.remote()) == 0
    assert (tmp_path / "told").read_text() == "over"
    ray.kill(trainer)
