"""Operations on EC2 machines: launch, check and terminate them, record interruptions, and compare them
with the slots.
"""
