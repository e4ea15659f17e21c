"""What the commands of `report` share with nobody: export, pages, rankings, history, differences."""
