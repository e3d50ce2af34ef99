"""The Gradio app: a page and an API that show where a captioner looked."""
