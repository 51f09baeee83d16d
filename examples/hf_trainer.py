"""Hugging Face's Trainer that survives the night: one callback more."""

from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

from hpcdash.job.huggingface import GuardCallback


def main() -> None:
    # First thing: where the kill switch is there, the program ends here with exit status 0.
    guard = GuardCallback(metrics="metrics.jsonl", save_every_minutes=60)
    arguments = TrainingArguments(
        output_dir="run", save_strategy="no", save_total_limit=2, logging_steps=10
    )
    model = AutoModelForCausalLM.from_pretrained("gpt2")
    train_dataset = ...  # yours
    trainer = Trainer(model=model, args=arguments, train_dataset=train_dataset, callbacks=[guard])
    trainer.train(resume_from_checkpoint=guard.resume_from("run"))


if __name__ == "__main__":
    main()
